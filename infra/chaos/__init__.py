"""`sluice chaos`: kills at random moments and at named edges, and what the topics say of them."""
