"""Training recipes: scripts that fine-tune a policy on the environments. Nothing else imports them."""
