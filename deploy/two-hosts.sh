#!/bin/bash
# A run on two hosts, tried on one machine: two network namespaces, joined by a cable (a veth pair). Needs Linux, no root.
#   deploy/two-hosts.sh demo --nodes 4 --rounds 3 --out runs/two-hosts
# Everything given is given to `cascadice run`. What the second host prints goes to standard error.
set -euo pipefail
if [ -z "${APART:-}" ]; then
  APART=1 exec unshare --map-root-user --net "$0" "$@"
fi
ip link set lo up
unshare --net sleep 600 &
other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
there() { nsenter --target $other --net "$@"; }
ip link add eth0 type veth peer name eth0 netns $other
ip address add 10.9.0.1/24 dev eth0
ip link set eth0 up
there ip link set lo up
there ip address add 10.9.0.2/24 dev eth0
there ip link set eth0 up
start=(--nnodes 2 --nproc-per-node "${PROCESSES:-1}" --master-addr 10.9.0.1 --master-port 29500)
there torchrun --node-rank 1 "${start[@]}" -m cascadice run "$@" --interface eth0 >&2 &
second=$!
torchrun --node-rank 0 "${start[@]}" -m cascadice run "$@" --interface eth0
wait $second
