"""PinSAGE's neighbourhoods per second, beside DGL."""
