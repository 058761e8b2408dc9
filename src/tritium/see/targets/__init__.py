"""The guides' performance targets, measured here beside what this machine allows."""
