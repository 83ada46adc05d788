"""A team's shared store for ktuned: winners as objects in a directory, in object storage or in Redis.

The daemon uses :mod:`~ktuned_team.team_store`. All access to file systems and networks happens in the bridge's process
(:mod:`~ktuned_team.service`); only names and bytes travel between the two.
"""
