"""Collectives: one `Communicator` interface over torch.distributed, MPI and a single process."""
