"""What routers, replicas and the controller share: cluster-wide state, deployment, autoscaling and status.

Process: any; detached actors keep the state, and Serve's controller calls the autoscaling policy.
"""
