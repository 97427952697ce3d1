"""The K/V of a session: host store, ring of resident pages, and who is resident.

`residency` decides, `transfer` moves, `cache` orders them for a layer.
"""
