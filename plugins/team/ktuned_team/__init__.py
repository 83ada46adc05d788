"""A team's shared store for ktuned: winners as objects in a directory, in object storage or in Redis.

The daemon has :mod:`~ktuned_team.team_store`. Whatever reaches for a file system or a network runs in the bridge's
process, by :mod:`~ktuned_team.service`; only names and bytes cross between the two.
"""
