"""The replicas of each model as a router sees them, and how requests reach them."""
