from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AccessAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCESS_ACTION_UNSPECIFIED: _ClassVar[AccessAction]
    ACCESS_READ: _ClassVar[AccessAction]
    ACCESS_WRITE: _ClassVar[AccessAction]
    ACCESS_ADMIN: _ClassVar[AccessAction]
ACCESS_ACTION_UNSPECIFIED: AccessAction
ACCESS_READ: AccessAction
ACCESS_WRITE: AccessAction
ACCESS_ADMIN: AccessAction

class AccessPermission(_message.Message):
    __slots__ = ("resource", "actions")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    resource: str
    actions: _containers.RepeatedScalarFieldContainer[AccessAction]
    def __init__(self, resource: _Optional[str] = ..., actions: _Optional[_Iterable[_Union[AccessAction, str]]] = ...) -> None: ...

class AccessKeyInfo(_message.Message):
    __slots__ = ("key_id", "verifier", "former_verifier", "former_until_ms", "disabled", "permissions", "description", "created_ms", "rotated_ms", "modified_revision", "owner")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    FORMER_VERIFIER_FIELD_NUMBER: _ClassVar[int]
    FORMER_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ROTATED_MS_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    verifier: bytes
    former_verifier: bytes
    former_until_ms: int
    disabled: bool
    permissions: _containers.RepeatedCompositeFieldContainer[AccessPermission]
    description: str
    created_ms: int
    rotated_ms: int
    modified_revision: int
    owner: str
    def __init__(self, key_id: _Optional[str] = ..., verifier: _Optional[bytes] = ..., former_verifier: _Optional[bytes] = ..., former_until_ms: _Optional[int] = ..., disabled: _Optional[bool] = ..., permissions: _Optional[_Iterable[_Union[AccessPermission, _Mapping]]] = ..., description: _Optional[str] = ..., created_ms: _Optional[int] = ..., rotated_ms: _Optional[int] = ..., modified_revision: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("key_id", "verifier", "permissions", "description", "owner")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    verifier: bytes
    permissions: _containers.RepeatedCompositeFieldContainer[AccessPermission]
    description: str
    owner: str
    def __init__(self, key_id: _Optional[str] = ..., verifier: _Optional[bytes] = ..., permissions: _Optional[_Iterable[_Union[AccessPermission, _Mapping]]] = ..., description: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class KeyReply(_message.Message):
    __slots__ = ("key", "revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    key: AccessKeyInfo
    revision: int
    def __init__(self, key: _Optional[_Union[AccessKeyInfo, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("key_id", "verifier")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    verifier: bytes
    def __init__(self, key_id: _Optional[str] = ..., verifier: _Optional[bytes] = ...) -> None: ...

class ListKeysReply(_message.Message):
    __slots__ = ("keys", "revision", "verifier_matches")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_MATCHES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[AccessKeyInfo]
    revision: int
    verifier_matches: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[AccessKeyInfo, _Mapping]]] = ..., revision: _Optional[int] = ..., verifier_matches: _Optional[bool] = ...) -> None: ...

class UpdateKeyRequest(_message.Message):
    __slots__ = ("key_id", "grant", "revoke", "disabled", "description", "owner", "expected_modified_revision")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    grant: _containers.RepeatedCompositeFieldContainer[AccessPermission]
    revoke: _containers.RepeatedCompositeFieldContainer[AccessPermission]
    disabled: bool
    description: str
    owner: str
    expected_modified_revision: int
    def __init__(self, key_id: _Optional[str] = ..., grant: _Optional[_Iterable[_Union[AccessPermission, _Mapping]]] = ..., revoke: _Optional[_Iterable[_Union[AccessPermission, _Mapping]]] = ..., disabled: _Optional[bool] = ..., description: _Optional[str] = ..., owner: _Optional[str] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class RotateKeyRequest(_message.Message):
    __slots__ = ("key_id", "verifier", "former_seconds")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    FORMER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    verifier: bytes
    former_seconds: float
    def __init__(self, key_id: _Optional[str] = ..., verifier: _Optional[bytes] = ..., former_seconds: _Optional[float] = ...) -> None: ...

class DeleteKeyRequest(_message.Message):
    __slots__ = ("key_id", "expected_modified_revision")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    expected_modified_revision: int
    def __init__(self, key_id: _Optional[str] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class DeleteKeyReply(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class WatchKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeysUpdate(_message.Message):
    __slots__ = ("keys", "revision", "etcd_reachable")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[AccessKeyInfo]
    revision: int
    etcd_reachable: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[AccessKeyInfo, _Mapping]]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...
