"""What devices do at most in a second: data sheets, and what was measured."""
