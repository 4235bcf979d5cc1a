"""What the experiments train on: prepared once into one checked file, mapped into memory from then on."""
