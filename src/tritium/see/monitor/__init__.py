"""Monitoring: counters, sensors over time, alerts, an endpoint for Prometheus."""
