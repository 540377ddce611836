"""What a run leaves on disk: its folder, the ledger of finished results, and what a full disk means."""
