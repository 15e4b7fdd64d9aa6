"""Schedules found by calibration: what they lose, what they take, and a search that weighs both."""
