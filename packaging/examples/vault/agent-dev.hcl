# What the sessions of the grant `dev` may do: exactly what its servers' secrets need.

path "secret/data/github" {
  capabilities = ["read"]
}
path "pki/issue/agent" {
  capabilities = ["update"]
}
