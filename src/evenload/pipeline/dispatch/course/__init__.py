"""The course of items through the stages: strands, and the rules by which they enter and leave a stage."""
