"""The federation between real machines: what stands around the recipes when members are not simulated."""
