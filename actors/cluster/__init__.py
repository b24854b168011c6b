"""ClusterManager, LoadBalancer and FaultDetector."""
