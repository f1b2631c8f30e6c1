"""The broker's side of the wire: every module translates, calls one method, translates back."""
