"""What routers, replicas and the controller share: cluster-wide state, deployment, autoscaling and status."""
