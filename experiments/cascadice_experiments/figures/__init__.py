"""Every figure of the paper, and some beyond it, as a plan, a measurement and a picture: `cascadice reproduce`."""
