"""Configuration files as a person would write them."""

from __future__ import annotations

BENCHMARK = """{
  "tensor_sizes": [
    [64, 64],
    [128, 128],
    [256, 256],
    [512, 512],
    [1024, 1024],
    [2048, 2048]
  ],
  "warmup_iterations": 5,
  "measurement_iterations": 10,
  "operations": [
    "matmul",
    "add",
    "multiply",
    "quantize",
    "bitlinear"
  ],
  "devices": [
    "cpu",
    "metal",
    "mlx"
  ],
  "data_types": [
    "f32",
    "f16"
  ],
  "timeout": "30s"
}"""

ENERGY = """{
  "monitoring_interval": "100ms",
  "power_measurement_duration": "10s",
  "thermal_monitoring": true,
  "battery_monitoring": true,
  "device_specific_monitoring": {
    "apple_silicon": true,
    "intel_cpu": true,
    "nvidia_gpu": false
  }
}"""

REGRESSION = """{
  "baseline_file": "performance_baselines.json",
  "regression_threshold": 0.05,
  "minimum_samples": 10,
  "confidence_level": 0.95,
  "alert_thresholds": {
    "warning": 0.05,
    "critical": 0.15
  },
  "auto_update_baseline": false
}"""
