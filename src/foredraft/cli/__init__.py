"""The command line; thin, and without a model it starts without PyTorch."""
