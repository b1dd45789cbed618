"""Everything that has a name, with a line about it; what takes long to import is imported when it is listed."""

from collections.abc import Callable, Mapping

from cascadice.runs.recipes import RECIPES, describe


def _recipes() -> Mapping[str, str]:
    return {name: describe(name) for name in RECIPES}


def _topologies() -> Mapping[str, str]:
    from cascadice.topology import TOPOLOGIES

    options = {name: f" (options: {', '.join(t.options)})" if t.options else "" for name, t in TOPOLOGIES.items()}
    return {name: t.description + options[name] for name, t in TOPOLOGIES.items()}


def _datasets() -> Mapping[str, str]:
    from cascadice.data import DATASETS

    return {name: source.description for name, source in DATASETS.items()}


def _models() -> Mapping[str, str]:
    from cascadice.models import MODELS

    return {name: description for name, (_, description) in MODELS.items()}


def _optimizers() -> Mapping[str, str]:
    from cascadice.optimizers import OPTIMIZERS

    return {name: description for name, (_, description) in OPTIMIZERS.items()}


def _losses() -> Mapping[str, str]:
    from cascadice.losses import LOSSES

    return {name: description for name, (_, description) in LOSSES.items()}


def _partitions() -> Mapping[str, str]:
    from cascadice.data.partition import PARTITIONS

    return PARTITIONS


def _corruptions() -> Mapping[str, str]:
    from cascadice.data.corruption import CORRUPTIONS

    return {name: kind.description for name, kind in CORRUPTIONS.items()}


def _behaviours() -> Mapping[str, str]:
    from cascadice.engine.behaviours import BEHAVIOURS

    return {name: kind.description for name, kind in BEHAVIOURS.items()}


def _rules() -> Mapping[str, str]:
    from cascadice.applications.choose.idea import RULES

    return {name: kind.description for name, kind in RULES.items()}


def _schedules() -> Mapping[str, str]:
    from cascadice.learning_rates import SCHEDULES

    return {form.text: form.description for form in SCHEDULES.values()}


def _strategies() -> Mapping[str, str]:
    from cascadice.engine.fast.rows import STRATEGIES

    return {"auto": "chosen by model, batch and device"} | {name: s.description for name, s in STRATEGIES.items()}


def _kinds() -> Mapping[str, str]:
    from cascadice.influence.estimators import ESTIMATORS

    return {name: kind.description for name, kind in ESTIMATORS.items()}


LISTS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "recipes": _recipes,
    "topologies": _topologies,
    "datasets": _datasets,
    "models": _models,
    "losses": _losses,
    "optimizers": _optimizers,
    "schedules": _schedules,
    "partitions": _partitions,
    "corruptions": _corruptions,
    "behaviours": _behaviours,
    "rules": _rules,
    "strategies": _strategies,
    "kinds": _kinds,
}
