"""The parts of bench/versus: what to build, what to start, how to measure, how to show it."""
