"""What runs cost, by formula."""

from recap.planning.plan import Plan, plan

__all__ = ["Plan", "plan"]
