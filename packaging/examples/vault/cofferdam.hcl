# What the sidecar's own login may do: make tokens for sessions through the role, and end them. It reads no secret itself.

path "auth/token/create/cofferdam" {
  capabilities = ["update"]
}
path "auth/token/revoke-accessor" {
  capabilities = ["update"]
}
