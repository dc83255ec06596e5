"""Samplers: seeds in, message flow graphs (MFGs) out; one process, hybrid and vanilla schemes."""
