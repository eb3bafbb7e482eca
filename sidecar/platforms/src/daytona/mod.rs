//! Daytona: the control API, the toolbox in the sandbox, preview links, and SSH.
