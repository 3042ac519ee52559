"""Each file takes the schema one version further; the number in its name orders them."""
