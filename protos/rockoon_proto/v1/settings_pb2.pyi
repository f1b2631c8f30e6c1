from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LiveSetting(_message.Message):
    __slots__ = ("service", "node", "name", "value", "access_key", "changed_ms", "owner", "modified_revision")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    CHANGED_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    service: str
    node: str
    name: str
    value: str
    access_key: str
    changed_ms: int
    owner: str
    modified_revision: int
    def __init__(self, service: _Optional[str] = ..., node: _Optional[str] = ..., name: _Optional[str] = ..., value: _Optional[str] = ..., access_key: _Optional[str] = ..., changed_ms: _Optional[int] = ..., owner: _Optional[str] = ..., modified_revision: _Optional[int] = ...) -> None: ...

class ChangeSettingRequest(_message.Message):
    __slots__ = ("setting", "unset", "check_only", "expected_modified_revision")
    SETTING_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    CHECK_ONLY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    setting: LiveSetting
    unset: bool
    check_only: bool
    expected_modified_revision: int
    def __init__(self, setting: _Optional[_Union[LiveSetting, _Mapping]] = ..., unset: _Optional[bool] = ..., check_only: _Optional[bool] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class ChangeSettingReply(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class StoreSettingRequest(_message.Message):
    __slots__ = ("setting", "unset", "expected_modified_revision")
    SETTING_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    setting: LiveSetting
    unset: bool
    expected_modified_revision: int
    def __init__(self, setting: _Optional[_Union[LiveSetting, _Mapping]] = ..., unset: _Optional[bool] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class WatchSettingsRequest(_message.Message):
    __slots__ = ("service", "node", "address", "tls_server_name")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TLS_SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    service: str
    node: str
    address: str
    tls_server_name: str
    def __init__(self, service: _Optional[str] = ..., node: _Optional[str] = ..., address: _Optional[str] = ..., tls_server_name: _Optional[str] = ...) -> None: ...

class ListGatewaysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGatewaysReply(_message.Message):
    __slots__ = ("gateways",)
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    gateways: _containers.RepeatedCompositeFieldContainer[Gateway]
    def __init__(self, gateways: _Optional[_Iterable[_Union[Gateway, _Mapping]]] = ...) -> None: ...

class Gateway(_message.Message):
    __slots__ = ("name", "address", "tls_server_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TLS_SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    tls_server_name: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., tls_server_name: _Optional[str] = ...) -> None: ...

class SettingsUpdate(_message.Message):
    __slots__ = ("settings", "revision", "etcd_reachable")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[LiveSetting]
    revision: int
    etcd_reachable: bool
    def __init__(self, settings: _Optional[_Iterable[_Union[LiveSetting, _Mapping]]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...

class DescribeSettingsRequest(_message.Message):
    __slots__ = ("min_revision",)
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    min_revision: int
    def __init__(self, min_revision: _Optional[int] = ...) -> None: ...

class DescribeSettingsReply(_message.Message):
    __slots__ = ("settings", "revision", "stored")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[SettingState]
    revision: int
    stored: _containers.RepeatedCompositeFieldContainer[LiveSetting]
    def __init__(self, settings: _Optional[_Iterable[_Union[SettingState, _Mapping]]] = ..., revision: _Optional[int] = ..., stored: _Optional[_Iterable[_Union[LiveSetting, _Mapping]]] = ...) -> None: ...

class SettingState(_message.Message):
    __slots__ = ("name", "value", "unit", "source", "doc", "is_live", "live", "refusal")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    IS_LIVE_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    unit: str
    source: str
    doc: str
    is_live: bool
    live: LiveSetting
    refusal: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., unit: _Optional[str] = ..., source: _Optional[str] = ..., doc: _Optional[str] = ..., is_live: _Optional[bool] = ..., live: _Optional[_Union[LiveSetting, _Mapping]] = ..., refusal: _Optional[str] = ...) -> None: ...
