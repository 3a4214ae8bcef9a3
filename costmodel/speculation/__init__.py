"""Speculative decoding: what drafts cost, what verifying them costs, how many tokens that gives, and when it pays."""
