"""The parts of bench/torch_collectives and bench/torch_training: how ranks are started, meet and are timed, and how results are
shown."""
