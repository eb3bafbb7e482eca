//! E2B, and platforms that are compatible with it: the control API, and the Connect protocol of `envd` in the sandbox.
