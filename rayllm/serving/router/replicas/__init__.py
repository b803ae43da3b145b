"""The replicas of each model as a router knows them, and the ways to reach one."""
