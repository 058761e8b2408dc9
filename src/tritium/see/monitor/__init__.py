"""Monitoring: counters, sensors over time, alerts, an endpoint for Prometheus.

Knows nothing of reports.
"""
