"""The long-prompt experiment on a live server: what is sent, what is recorded, and what it says."""
