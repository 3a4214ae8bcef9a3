"""Inverse questions: the largest token budget, batch or prompt, the GPU and the number of servers that limits allow, and what binds."""
