"""Floor 3: any equation as steps: plans, slices, winners walked back."""
