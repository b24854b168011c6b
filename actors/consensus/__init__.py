"""The server of the ledger on a host: a replica of it, who follows it, and its links to the other voters."""
