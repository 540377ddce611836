"""Which strategy trains these clients fastest: measured on the clients themselves while they train."""
