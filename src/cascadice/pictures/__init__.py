"""Pictures of training, data, networks and influence, with Matplotlib."""
