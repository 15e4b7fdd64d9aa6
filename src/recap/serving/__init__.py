"""`recap serve`: images over HTTP, the requests of different clients drawn together.

Nothing is imported here: `app`, `schema` and `server` need the extra `serve`, the rest does not.
"""
