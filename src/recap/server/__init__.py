"""`recap serve` and `recap studio`: one application, an API over HTTP and, switched on, a page that uses it.

Nothing is imported here: all but `limits` needs the extra `serve`.
"""
