"""Access keys on a service's side: who is calling, and whether he may."""
