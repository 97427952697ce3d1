"""Routed experts: all of them on the device, or a pool of slots in front of host memory."""
