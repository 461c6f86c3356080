"""How the mock endpoint misbehaves: shapes of replies, quirks of servers."""
