"""The former name of `tenferro_jax.plans`, for one release."""

from .plans import Equation as Equation
from .plans import Plan as Plan
from .plans import Step as Step
from .plans import parse_equation as parse_equation
