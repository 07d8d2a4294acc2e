"""The real one's errors, as far as they matter: they are no OSError, and have the number as `err_code`."""


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code
        self.err_info = f"AMDSMI_STATUS_{err_code} - the library's words"

    def __str__(self) -> str:
        return f"Error code:\n\t{self.err_code} | {self.err_info}"


class AmdSmiParameterException(AmdSmiException):
    def __init__(self, value: object) -> None:
        super().__init__(f"not a handle: {value}")
        self.err_code = None
