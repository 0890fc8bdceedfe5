"""What the test kit raises when somebody breaks a contract."""


class ContractError(AssertionError):
    """The core or a backend broke a rule of :mod:`specframe.core.ports`; the message names the rule."""


class StrategyContractError(ContractError):
    """A strategy broke a rule of :mod:`specframe.core.strategy`; the message names the rule."""
