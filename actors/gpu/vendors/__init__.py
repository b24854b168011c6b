"""One module per vendor library; nothing else imports one."""
