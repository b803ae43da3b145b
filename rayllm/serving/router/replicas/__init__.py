"""The replicas of each model, as a router sees them."""
